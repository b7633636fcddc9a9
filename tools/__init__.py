"""Programs for those who work on the project: training of the small models, figures. No part of the package."""
