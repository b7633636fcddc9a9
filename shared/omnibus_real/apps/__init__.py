"""Apps on trained weights of packages: ``omnibus up --real`` serves them. They are in ``examples/real`` as well."""
