//! The layout of an event's record, as `events/…/format` describes it.

/// A field of a record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Field {
    /// Offset in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub size: usize,
    /// The bytes are the place of the text, not the text: its offset in the low half, its length in the high half.
    pub is_place: bool,
}

/// An event's number and the fields that are wanted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Format {
    /// The number with which each record begins.
    pub id: u16,
    fields: Vec<(String, Field)>,
}

/// A description that cannot be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FormatError {
    /// It has no number.
    #[error("the description has no ID")]
    NoId,
    /// A field cannot be read.
    #[error("the description of a field cannot be read: {0}")]
    Field(String),
}

impl Format {
    /// Reads a description.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:")?.trim().parse().ok());
        let lines = text.lines().map(str::trim).filter(|line| line.starts_with("field:"));
        let fields = lines.map(field).collect::<Result<_, _>>()?;
        Ok(Self { id: id.ok_or(FormatError::NoId)?, fields })
    }

    /// The field of this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, field)| field)
    }
}

/// Reads `field:TYPE NAME[LEN]; offset:8; size:16; signed:0;`, with tabs between the parts.
fn field(line: &str) -> Result<(String, Field), FormatError> {
    let wrong = || FormatError::Field(line.to_owned());
    let mut parts = line.split(';').map(str::trim);
    let declared = parts.next().and_then(|part| part.strip_prefix("field:")).ok_or_else(wrong)?;
    let numbers: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once(':')).collect();
    let number = |name: &str| {
        let found = numbers.iter().find(|(known, _)| *known == name);
        found.and_then(|(_, value)| value.parse::<usize>().ok()).ok_or_else(wrong)
    };
    let name = declared.rsplit([' ', '*']).next().ok_or_else(wrong)?;
    let name = name.split('[').next().unwrap_or(name);
    let is_place = declared.starts_with("__data_loc");
    let field = Field { offset: number("offset")?, size: number("size")?, is_place };
    Ok((name.to_owned(), field))
}

impl Field {
    /// The number in the field, if the record is long enough. Numbers are little-endian, as on all machines that
    /// farflash runs on.
    #[must_use]
    pub fn number(&self, record: &[u8]) -> Option<u64> {
        let bytes = record.get(self.offset..self.offset.checked_add(self.size)?)?;
        let mut word = [0u8; 8];
        word.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }

    /// The text in the field, up to its zero byte.
    #[must_use]
    pub fn text<'a>(&self, record: &'a [u8]) -> Option<std::borrow::Cow<'a, str>> {
        let (offset, size) = if self.is_place {
            let place = self.number(record)?;
            ((place & 0xffff) as usize, (place >> 16) as usize)
        } else {
            (self.offset, self.size)
        };
        let bytes = record.get(offset..offset.checked_add(size)?)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(&bytes[..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IRQ: &str = "name: irq_handler_entry\nID: 225\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:int irq;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:__data_loc char[] name;\toffset:12;\tsize:4;\tsigned:0;\n\
        \tfield:char comm[16];\toffset:16;\tsize:16;\tsigned:0;\n\n\
        print fmt: \"irq=%d name=%s\", REC->irq, __get_str(name)\n";

    #[test]
    fn numbers_and_texts_of_both_kinds_are_found() {
        let format = Format::parse(IRQ).unwrap();
        assert_eq!(format.id, 225);
        let mut record = vec![0u8; 40];
        record[8..12].copy_from_slice(&37u32.to_le_bytes());
        record[12..16].copy_from_slice(&((8u32 << 16) | 32).to_le_bytes());
        record[16..20].copy_from_slice(b"bash");
        record[32..39].copy_from_slice(b"nvme0q1");
        assert_eq!(format.field("irq").unwrap().number(&record), Some(37));
        assert_eq!(format.field("name").unwrap().text(&record).unwrap(), "nvme0q1");
        assert_eq!(format.field("comm").unwrap().text(&record).unwrap(), "bash");
        assert_eq!(format.field("absent"), None);
    }

    #[test]
    fn a_short_record_and_a_bad_description_are_no_panic() {
        let format = Format::parse(IRQ).unwrap();
        assert_eq!(format.field("irq").unwrap().number(&[0; 9]), None);
        let mut record = vec![0u8; 16];
        record[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(format.field("name").unwrap().text(&record), None);
        assert_eq!(Format::parse("name: x\n"), Err(FormatError::NoId));
        assert!(Format::parse("ID: 1\n field:int x; offset:a; size:4;").is_err());
        let far = format!("ID: 1\n field:int x; offset:{}; size:4;", usize::MAX);
        assert_eq!(Format::parse(&far).unwrap().field("x").unwrap().number(&[0; 9]), None);
    }
}
