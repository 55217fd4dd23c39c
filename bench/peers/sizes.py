"""The settings that all contenders of the PPO benchmark share; the networks are 64x64 tanh, actor and critic apart."""

ROLLOUT_LENGTH = 128
NUM_EPOCHS = 4
NUM_MINIBATCHES = 4
HIDDEN_SIZES = (64, 64)
LEARNING_RATE = 3e-4
MAX_GRAD_NORM = 0.5
DISCOUNT = 0.99
GAE_LAMBDA = 0.95
CLIP_RATIO = 0.2
VALUE_COEFFICIENT = 0.5
ENTROPY_COEFFICIENT = 0.01
