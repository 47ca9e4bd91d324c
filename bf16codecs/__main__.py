"""``python -m bf16codecs``."""

from bf16codecs.cli import main

main(prog_name="python -m bf16codecs")
