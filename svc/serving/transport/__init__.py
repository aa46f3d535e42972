"""HTTP connections: accepting them, reading and answering them, closing them."""
