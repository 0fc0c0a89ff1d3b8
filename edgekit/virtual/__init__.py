"""Devices that need no hardware: each runs the vendor's own arithmetic, or an emulated processor."""
