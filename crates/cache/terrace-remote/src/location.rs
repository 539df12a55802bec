//! Location of a target in a store: `s3://BUCKET[/PREFIX][?endpoint=URL&region=NAME&credentials=FILE]` or
//! `fs:///DIRECTORY`.

use std::fmt;
use std::path::{Path, PathBuf};

const S3: &str = "s3://";
const FS: &str = "fs://";

/// The location of a target's objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location {
    /// Below a prefix of an S3 bucket.
    S3(Bucket),
    /// In a directory, possibly shared by several machines.
    Fs(PathBuf),
}

/// A bucket, or the part below a prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) name: String,
    /// Without slashes at its ends. Empty: the whole bucket.
    pub(crate) prefix: String,
    /// The server. None: AWS.
    pub(crate) endpoint: Option<String>,
    /// The region. None: from the environment.
    pub(crate) region: Option<String>,
    /// A credentials file in the format of the AWS tools. None: from the environment.
    pub(crate) credentials: Option<PathBuf>,
}

/// An invalid path: one line, with what helps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invalid(pub String);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

impl Location {
    /// Parses a path.
    ///
    /// # Errors
    /// The path is no location, or contains a secret.
    pub(crate) fn parse(path: &Path) -> Result<Location, Invalid> {
        let text = path.to_str().unwrap_or_default();
        if let Some(dir) = text.strip_prefix(FS) {
            return match dir.strip_prefix('/') {
                Some(_) => Ok(Location::Fs(dir.into())),
                None => Err(Invalid("the tier's directory is relative; write fs:///DIRECTORY".to_owned())),
            };
        }
        let Some(rest) = text.strip_prefix(S3) else {
            return Err(Invalid("not a remote path; write s3://BUCKET/PREFIX or fs:///DIRECTORY".to_owned()));
        };
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (name, prefix) = place.split_once('/').unwrap_or((place, ""));
        if name.is_empty() {
            return Err(Invalid("the bucket is missing; write s3://BUCKET/PREFIX".to_owned()));
        }
        let prefix = prefix.trim_matches('/').to_owned();
        let mut bucket = Bucket { name: name.to_owned(), prefix, ..Bucket::default() };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            bucket.set(option)?;
        }
        Ok(Location::S3(bucket))
    }
}

impl Bucket {
    fn set(&mut self, option: &str) -> Result<(), Invalid> {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        match key {
            "endpoint" => self.endpoint = Some(value.to_owned()),
            "region" => self.region = Some(value.to_owned()),
            "credentials" if !value.is_empty() && !value.starts_with('/') => {
                return Err(Invalid(
                    "the path of credentials=FILE is relative; write an absolute one".to_owned(),
                ));
            }
            "credentials" => self.credentials = Some(value.into()),
            // The value may be a secret, so it is not repeated.
            other => {
                let known = "endpoint, region and credentials=FILE";
                return Err(Invalid(format!(
                    "unknown option `{other}`; use {known}, and give keys by the environment or that file"
                )));
            }
        }
        match value.is_empty() {
            true => Err(Invalid(format!("the option `{key}` has no value; write {key}=VALUE"))),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Location, String> {
        Location::parse(Path::new(text)).map_err(|invalid| invalid.0)
    }

    #[test]
    fn places_are_read() {
        let all = "s3://b/a/c/?endpoint=http://127.0.0.1:9000&region=x&credentials=/etc/keys";
        let bucket = Bucket {
            name: "b".to_owned(),
            prefix: "a/c".to_owned(),
            endpoint: Some("http://127.0.0.1:9000".to_owned()),
            region: Some("x".to_owned()),
            credentials: Some("/etc/keys".into()),
        };
        assert_eq!(parse(all), Ok(Location::S3(bucket)));
        let whole = Bucket { name: "b".to_owned(), ..Bucket::default() };
        assert_eq!(parse("s3://b"), Ok(Location::S3(whole)));
        assert_eq!(parse("fs:///a/b"), Ok(Location::Fs("/a/b".into())));
    }

    #[test]
    fn what_names_no_place_is_one_line_without_values() {
        for text in [
            "s3://",
            "s3:///a",
            "fs://a",
            "fs://",
            "gs://a",
            "s3://b?region",
            "s3://b?secret_key=abc",
            "s3://b?credentials=abc",
        ] {
            let line = parse(text).unwrap_err();
            assert!(line.contains("; ") && !line.contains("abc"), "{text}: {line}");
        }
    }
}
