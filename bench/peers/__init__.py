"""What Rookery's training is measured against: each peer is one file with a class that trains for an iteration."""
