"""`check`: will the state of a snapshot restore in a new job?"""
