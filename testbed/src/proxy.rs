//! A proxy between the operator and the apiserver that counts requests and injects faults.
