//! `MyApp`: its command, executed for real, and its Pod on the control plane.

mod shell;
