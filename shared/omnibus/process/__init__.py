"""Operating-system processes: started, supervised, restarted, ended with their parent."""
