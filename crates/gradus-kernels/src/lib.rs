//! Fused tensor operations.
