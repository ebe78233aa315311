"""Set-up, parameter checks and small helpers of the public API."""
