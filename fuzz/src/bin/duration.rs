#![no_main]

qm_fuzz::fuzz!(quartermaster::fuzz::duration);
