//! The fake account: region, access key and subnets.

/// The only region.
pub const REGION: &str = "us-east-1";

/// The access key that is valid from the start.
pub const ACCESS_KEY: &str = "AKIATESTBED000000000";

/// Subnets of the first VPC, one in each of three zones (a, b, c); the first two are the document's.
pub const SUBNETS: [&str; 3] = ["subnet-abc", "subnet-def", "subnet-ghi"];

/// Subnets of the second VPC, in zones a and b.
pub const OTHER_SUBNETS: [&str; 2] = ["subnet-uvw", "subnet-xyz"];

/// Variables that could give a process other credentials or another endpoint; remove them from a process that uses this
/// server.
pub const FOREIGN: [&str; 13] = [
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2",
    "AWS_ENDPOINT_URL_STS",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "AWS_PROFILE",
    "AWS_ROLE_ARN",
    "AWS_SESSION_TOKEN",
    "AWS_USE_DUALSTACK_ENDPOINT",
    "AWS_USE_FIPS_ENDPOINT",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
];
