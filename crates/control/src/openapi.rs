//! The description of the API, made from the handlers themselves.

use serde_json::{Value, json};
use utoipa::openapi::schema::{AdditionalProperties, Schema};
use utoipa::openapi::{OneOf, RefOr};
use utoipa::{Modify, OpenApi};

use crate::gate::{AUDIT_SHOWN, INCOMPLETE, is_open};
use crate::links;
use crate::problem::Problem;
use crate::quota::__path_show_quota;
use crate::routes::paths::{
    __path_change_auth, __path_change_device, __path_change_volume, __path_create_volume,
    __path_delete_volume, __path_end_recording, __path_fetch_recorded, __path_forget_device,
    __path_forget_device_of, __path_grow_device, __path_healthz, __path_list_devices,
    __path_list_hosts, __path_list_volumes, __path_readyz, __path_restrict_volume,
    __path_show_metrics, __path_show_openapi, __path_show_scrub, __path_show_server,
    __path_show_serving, __path_show_stats, __path_show_volume, __path_start_recording,
    __path_start_scrub, __path_stop_scrub,
};

#[derive(OpenApi)]
#[openapi(
    modifiers(&Exclusive),
    components(schemas(Problem)),
    info(
        title = "farflash",
        description = "Volumes of a Flash server, for NVMe/TCP hosts.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(
        create_volume,
        list_volumes,
        show_volume,
        change_volume,
        change_auth,
        restrict_volume,
        delete_volume,
        start_recording,
        fetch_recorded,
        end_recording,
        list_hosts,
        list_devices,
        change_device,
        grow_device,
        show_scrub,
        start_scrub,
        stop_scrub,
        show_quota,
        show_serving,
        forget_device,
        forget_device_of,
        show_stats,
        show_server,
        show_openapi,
        show_metrics,
        healthz,
        readyz,
    )
)]
struct Api;

/// Says of alternatives that are told by their field that there is no other field beside it.
struct Exclusive;

impl Modify for Exclusive {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let Some(components) = &mut document.components else { return };
        for schema in components.schemas.values_mut() {
            let RefOr::T(Schema::OneOf(OneOf { items, .. })) = schema else { continue };
            for item in items {
                if let RefOr::T(Schema::Object(object)) = item
                    && !object.properties.is_empty()
                {
                    let none = AdditionalProperties::FreeForm(false);
                    object.additional_properties = Some(Box::new(none));
                }
            }
        }
    }
}

/// The OpenAPI document, as served at `/v1/openapi.json`.
#[must_use]
pub fn openapi() -> Value {
    let mut document = serde_json::to_value(Api::openapi()).expect("numbers and strings");
    rename_formats(&mut document);
    add_security(&mut document);
    add_audit(&mut document);
    links::add(&mut document);
    document
}

/// Says of each answer to a change that it may be missing in the audit log.
fn add_audit(document: &mut Value) {
    let header = json!({
        "description": "Only where the audit log has what was asked and could not take what was answered. \
                        The answer is true all the same.",
        "schema": { "type": "string", "enum": [INCOMPLETE] },
    });
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    let operations = paths.flat_map(|(_, path)| path.as_object_mut().into_iter().flatten());
    for (_, operation) in operations.filter(|(method, _)| *method != "get") {
        let responses = operation["responses"].as_object_mut();
        for response in responses.into_iter().flat_map(|all| all.values_mut()) {
            response["headers"][AUDIT_SHOWN] = header.clone();
        }
    }
}

/// Says how clients name themselves. That they need not is true of servers without a list of users.
fn add_security(document: &mut Value) {
    document["components"]["securitySchemes"]["token"] = json!({
        "type": "http",
        "scheme": "bearer",
        "description": "A token of the server's list of users. Without such a list the server answers root and its own user, on its host; with `--api-open`, everybody.",
    });
    document["security"] = json!([{ "token": [] }, {}]);
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (_, operations) in paths.filter(|(path, _)| is_open(path)) {
        for operation in operations.as_object_mut().into_iter().flat_map(|all| all.values_mut()) {
            operation["security"] = json!([]);
        }
    }
}

/// Gives integers without a sign the names that the registry of formats has for them.
fn rename_formats(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(format)) = fields.get_mut("format") {
                *format = format.replace("u-int", "uint");
            }
            fields.values_mut().for_each(rename_formats);
        }
        Value::Array(items) => items.iter_mut().for_each(rename_formats),
        _ => {}
    }
}
