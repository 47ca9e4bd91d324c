"""``python -m bf16codecs``."""

from bf16codecs._commands import main

if __name__ == "__main__":
    main("python -m bf16codecs")
