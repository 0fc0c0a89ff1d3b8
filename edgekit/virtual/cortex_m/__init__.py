"""Cortex-M cores in qemu-system-arm: firmware is built from `apps/mcu` and a generated model, run, and spoken to through semihosting."""
