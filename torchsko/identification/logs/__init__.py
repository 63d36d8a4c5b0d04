"""Logs: tables, columns, units and time stamps."""
