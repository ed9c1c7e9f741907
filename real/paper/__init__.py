"""The experiments of LibraSpec's paper (arXiv 2608.08721), one command each: `python -m real.paper`, docs/paper.md."""
