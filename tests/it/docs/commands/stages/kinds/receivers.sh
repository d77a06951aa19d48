# The services are on the internet, where a test sends nothing.
#! the operator ends
