"""A module name of others, answered by mx_rec; see the README."""
