//! Guests that do what no driver does: their monitor must outlive it.
