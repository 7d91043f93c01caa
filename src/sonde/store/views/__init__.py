"""Tables that are computed from other tables when a query names them."""
