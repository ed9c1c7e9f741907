"""Result folders as one HTML page that needs no network: `python -m analysis.report RUN_DIR...`."""
