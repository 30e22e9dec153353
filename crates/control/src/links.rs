//! The links of the API's description: which answer names what another operation takes.
//!
//! Programs that are made from the description follow them, and so do tests: from a volume that was just made to each thing
//! that can be done with it.

use serde_json::{Value, json};

/// Operations on a volume.
const OF_A_VOLUME: &[&str] = &[
    "showVolume",
    "changeVolume",
    "changeAuth",
    "restrictVolume",
    "deleteVolume",
    "startRecording",
];
/// Operations on a recording of a volume's requests.
const OF_A_RECORDING: &[&str] = &["fetchRecorded", "endRecording"];
/// Operations on a device, by its name.
const OF_A_DEVICE: &[&str] =
    &["changeDevice", "growDevice", "showScrub", "startScrub", "stopScrub"];
/// Operations on a device, by its id.
const OF_A_DEVICE_ID: &[&str] = &["showServing", "forgetDevice", "forgetDeviceOf"];

/// An answer that names something, and what can be asked for by that name.
struct Source {
    path: &'static str,
    method: &'static str,
    status: &'static str,
    /// Parameters, and the place of each in the answer's body, as a JSON pointer.
    names: &'static [(&'static str, &'static str)],
    operations: &'static [&'static str],
}

const SOURCES: &[Source] = &[
    volume("/v1/volumes", "post", "201", &[("volume", "/id")]),
    volume("/v1/volumes", "get", "200", &[("volume", "/volumes/0/id")]),
    volume("/v1/volumes/{volume}", "get", "200", &[("volume", "/id")]),
    volume("/v1/volumes/{volume}", "patch", "200", &[("volume", "/id")]),
    volume("/v1/volumes/{volume}/restrictions", "patch", "200", &[("volume", "/id")]),
    Source {
        path: "/v1/volumes/{volume}/recordings",
        method: "post",
        status: "201",
        names: &[("volume", "/volume"), ("recording", "/id")],
        operations: OF_A_RECORDING,
    },
    device("/v1/devices", &[("device", "/devices/0/name")], OF_A_DEVICE),
    device("/v1/hosts", &[("device", "/hosts/0/devices/0/id")], OF_A_DEVICE_ID),
];

const fn volume(
    path: &'static str,
    method: &'static str,
    status: &'static str,
    names: &'static [(&'static str, &'static str)],
) -> Source {
    Source { path, method, status, names, operations: OF_A_VOLUME }
}

const fn device(
    path: &'static str,
    names: &'static [(&'static str, &'static str)],
    operations: &'static [&'static str],
) -> Source {
    Source { path, method: "get", status: "200", names, operations }
}

/// Adds them to the description.
pub(crate) fn add(document: &mut Value) {
    for source in SOURCES {
        let names = source.names.iter().map(|(parameter, pointer)| {
            ((*parameter).to_owned(), Value::String(format!("$response.body#{pointer}")))
        });
        let parameters = Value::Object(names.collect());
        let response =
            &mut document["paths"][source.path][source.method]["responses"][source.status];
        for operation in source.operations {
            response["links"][*operation] =
                json!({ "operationId": operation, "parameters": parameters });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openapi;

    /// All operations of a description.
    fn operations(document: &Value) -> impl Iterator<Item = &Value> {
        let paths = document["paths"].as_object().unwrap().values();
        paths.flat_map(|path| path.as_object().unwrap().values())
    }

    /// The schema that a reference names, or that is there itself.
    fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
        let named = schema["$ref"].as_str().and_then(|named| named.strip_prefix('#'));
        named.map_or(schema, |pointer| document.pointer(pointer).unwrap())
    }

    /// The schema of what lies at `pointer` in a document of this schema. One that is another's with something beside is
    /// described as both.
    fn at<'a>(document: &'a Value, schema: &'a Value, pointer: &str) -> Option<&'a Value> {
        pointer
            .split('/')
            .skip(1)
            .try_fold(resolved(document, schema), |schema, part| {
                let parts =
                    schema["allOf"].as_array().map_or(std::slice::from_ref(schema), |all| all);
                let mut parts = parts.iter().map(|schema| resolved(document, schema));
                parts.find_map(|schema| match part {
                    "0" => schema.get("items"),
                    name => schema["properties"].get(name),
                })
            })
            .map(|schema| resolved(document, schema))
    }

    /// Method: each link is followed in the description: its operation takes what the link gives it, and the answer has
    /// text where the link takes it from.
    #[test]
    fn links_lead_from_what_names_something_to_all_that_takes_the_name() {
        let document = openapi();
        let mut linked = Vec::new();
        for response in
            operations(&document).flat_map(|one| one["responses"].as_object().unwrap().values())
        {
            for link in response["links"].as_object().into_iter().flat_map(|links| links.values()) {
                let mut all = operations(&document);
                let target = all.find(|one| one["operationId"] == link["operationId"]);
                let target = target.unwrap_or_else(|| panic!("{link}"));
                for (name, place) in link["parameters"].as_object().unwrap() {
                    let mut taken = target["parameters"].as_array().unwrap().iter();
                    assert!(taken.any(|parameter| parameter["name"] == *name), "{link}");
                    let pointer = place.as_str().unwrap().strip_prefix("$response.body#").unwrap();
                    let schema = &response["content"]["application/json"]["schema"];
                    let found = at(&document, schema, pointer);
                    assert!(found.is_some_and(|found| found["type"] == "string"), "{link}");
                }
                linked.push(&link["operationId"]);
            }
        }
        for operation in operations(&document).filter(|one| one["parameters"].is_array()) {
            let name = &operation["operationId"];
            assert!(linked.contains(&name), "nothing leads to {name}");
        }
    }
}
