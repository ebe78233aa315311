"""`python -m mx_rec.cli`."""

from __future__ import annotations

from mx_rec.cli.app import main

if __name__ == "__main__":
    main()
