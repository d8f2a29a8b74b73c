"""Adapters that let agents' frameworks work in a session. Each module needs its framework, which it imports itself."""
