//! Paths in JSON: a string, or the list of its bytes if it is not UTF-8. For `#[serde(with = "...")]`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<&Path> for Form {
    fn from(path: &Path) -> Form {
        match path.to_str() {
            Some(text) => Form::Text(text.to_owned()),
            None => Form::Bytes(path.as_os_str().as_bytes().to_vec()),
        }
    }
}

impl From<Form> for PathBuf {
    fn from(form: Form) -> PathBuf {
        match form {
            Form::Text(text) => text.into(),
            Form::Bytes(bytes) => OsString::from_vec(bytes).into(),
        }
    }
}

/// Writes a path.
pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    Form::from(path).serialize(to)
}

/// Reads a path.
pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<PathBuf, D::Error> {
    Form::deserialize(from).map(PathBuf::from)
}

/// A path that may be missing.
pub(crate) mod optional {
    use super::{Deserialize, Deserializer, Form, PathBuf, Serialize, Serializer};

    /// Writes it.
    pub(crate) fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        path.as_deref().map(Form::from).serialize(to)
    }

    /// Reads it.
    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<Form>::deserialize(from)?.map(PathBuf::from))
    }
}

/// Several paths.
pub(crate) mod list {
    use super::{Deserialize, Deserializer, Form, PathBuf, Serializer};

    /// Writes them.
    pub(crate) fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().map(|path| Form::from(path.as_path())))
    }

    /// Reads them.
    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<Form>::deserialize(from)?.into_iter().map(PathBuf::from).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Record {
        #[serde(with = "crate::path")]
        one: PathBuf,
        #[serde(with = "crate::path::optional")]
        maybe: Option<PathBuf>,
        #[serde(with = "crate::path::list")]
        many: Vec<PathBuf>,
    }

    #[test]
    fn paths_are_read_back_whatever_their_bytes() {
        let odd = PathBuf::from(OsString::from_vec(b"/caf\xe9/\\xe9".to_vec()));
        let text = PathBuf::from("/caf\u{e9}/\\xe9");
        for (one, maybe) in [(&odd, None), (&text, Some(odd.clone())), (&odd, Some(text.clone()))] {
            let record = Record { one: one.clone(), maybe, many: vec![odd.clone(), text.clone()] };
            let json = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<Record>(&json).unwrap(), record, "{json}");
        }
        assert_eq!(serde_json::to_string(&Form::from(text.as_path())).unwrap(), "\"/café/\\\\xe9\"");
    }
}
