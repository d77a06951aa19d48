#! nothing is installed
