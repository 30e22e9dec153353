//! Reads and writes one setting, be it a file, a link, a directory, a part of a network card or a thread's priority.

use std::io;
use std::os::unix::ffi::OsStringExt;

use crate::card::Card;
use crate::proposal::Form;
use crate::root::{Root, RootError};
use crate::thread::Thread;

/// The content of a setting; `None` if it is not there and need not be.
pub(crate) fn read(root: &Root, path: &str, form: Form) -> Result<Option<Vec<u8>>, RootError> {
    let content = match form {
        Form::Feature | Form::Spread | Form::Rule => {
            let card = card(path)?;
            let value = card.read(root).map_err(|error| RootError::new(path, error))?;
            value.map(String::into_bytes)
        }
        Form::Priority => {
            let value = thread(path)?.read(root);
            Some(value.map_err(|error| RootError::new(path, error))?.into_bytes())
        }
        Form::Link => root.link_target(path).map(OsStringExt::into_vec),
        Form::Directory => root.has(path).then(Vec::new),
        _ => match root.read(path) {
            Err(error) if error.error.kind() == io::ErrorKind::NotFound => None,
            read => Some(read?),
        },
    };
    match content {
        None if !form.may_be_absent() => Err(RootError::new(
            path,
            io::Error::from_raw_os_error(rustix::io::Errno::NOENT.raw_os_error()),
        )),
        content => Ok(content),
    }
}

/// Sets a setting; removes it without `content`.
pub(crate) fn write(
    root: &Root,
    path: &str,
    form: Form,
    content: Option<&[u8]>,
) -> Result<(), RootError> {
    let text = content.map(String::from_utf8_lossy);
    match (form, content) {
        (Form::Feature | Form::Spread | Form::Rule, _) => {
            let written = card(path)?.write(root, text.as_deref());
            written.map_err(|error| RootError::new(path, error))
        }
        (Form::Priority, _) => {
            let written = thread(path)?.write(root, &text.unwrap_or_default());
            written.map_err(|error| RootError::new(path, error))
        }
        (_, None) => root.remove(path),
        (Form::Link, Some(_)) => {
            if root.link_target(path).is_some() {
                root.remove(path)?;
            }
            root.link(path, &text.unwrap_or_default())
        }
        (Form::Directory, Some(_)) => root.make_directory(path),
        (Form::Document, Some(content)) => root.put(path, content),
        (_, Some(content)) => root.write(path, content),
    }
}

/// The bytes that set `value`.
pub(crate) fn bytes(form: Form, value: &str) -> Vec<u8> {
    match form {
        Form::Document | Form::Link => value.as_bytes().to_vec(),
        _ => format!("{value}\n").into_bytes(),
    }
}

fn card(key: &str) -> Result<Card<'_>, RootError> {
    Card::parse(key).ok_or_else(|| RootError::new(key, io::ErrorKind::InvalidInput.into()))
}

fn thread(key: &str) -> Result<Thread<'_>, RootError> {
    Thread::parse(key).ok_or_else(|| RootError::new(key, io::ErrorKind::InvalidInput.into()))
}
