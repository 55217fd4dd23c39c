"""Where environments live: in this process or in others."""
