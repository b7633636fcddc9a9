"""Model families as the control plane knows them: specifications, default deployments, plug-ins."""
