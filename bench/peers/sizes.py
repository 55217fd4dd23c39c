"""The settings that all contenders of the PPO benchmarks share; networks are 64x64 tanh, with a GRU if recurrent."""

ROLLOUT_LENGTH = 128
NUM_EPOCHS = 4
NUM_MINIBATCHES = 4
HIDDEN_SIZES = (64, 64)
CORE_SIZE = 128
LEARNING_RATE = 3e-4
MAX_GRAD_NORM = 0.5
DISCOUNT = 0.99
GAE_LAMBDA = 0.95
CLIP_RATIO = 0.2
VALUE_COEFFICIENT = 0.5
ENTROPY_COEFFICIENT = 0.01
