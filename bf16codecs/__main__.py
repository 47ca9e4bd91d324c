"""``python -m bf16codecs``."""

from bf16codecs.cli import main

if __name__ == "__main__":
    main(prog_name="python -m bf16codecs")
