"""Model families in the control plane: specifications, default deployments, plug-ins."""
