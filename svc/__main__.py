"""`python -m svc` is `svc`."""

from svc.cli.main import main

if __name__ == "__main__":
    main()
