"""Third-party code as targets: canonical arrays go in; what that code answers comes out.

Each module is imported in a worker that has its framework.
"""
