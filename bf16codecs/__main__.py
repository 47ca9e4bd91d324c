"""``python -m bf16codecs``."""

from bf16codecs.cli.entry import main

if __name__ == "__main__":
    main("python -m bf16codecs")
