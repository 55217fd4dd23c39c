"""The settings that all contenders of the SAC benchmark share; one environment, one update for each of its steps."""

BATCH_SIZE = 256
BUFFER_CAPACITY = 131_072
"""The default of rejax."""
SMALL_CAPACITY = 20_000
WARMUP_STEPS = 1_000
HIDDEN_SIZES = (64, 64)
TARGET_UPDATE_RATE = 0.005
