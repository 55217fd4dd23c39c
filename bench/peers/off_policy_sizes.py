"""The settings that all contenders of the off-policy benchmarks share; one environment, one update for each step."""

BATCH_SIZES = {"sac": 256, "td3": 256, "dqn": 128}
BUFFER_CAPACITY = 131_072
"""The default of rejax."""
SMALL_CAPACITY = 20_000
LARGE_CAPACITY = 1_000_000
WARMUP_STEPS = 1_000
HIDDEN_SIZES = (64, 64)
TARGET_UPDATE_RATE = 0.005
