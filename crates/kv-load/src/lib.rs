//! Load generator for key-value servers that speak RESP.
