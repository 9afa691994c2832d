"""``python -m workbench.native``: compile local training for this processor (`workbench.training.native`)."""

from workbench.training.native.__main__ import main

if __name__ == "__main__":
    main()
