#![no_main]

qm_fuzz::fuzz!(qm_notify::fuzz::telegram);
