"""Development programs: training of the small models, and figures. Not part of the package."""
