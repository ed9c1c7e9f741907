"""Vision-language models as targets of the decode loop: prompts with pictures in, the same loop and drafters after."""
