//! The description of the API, made from the handlers themselves.

use utoipa::OpenApi;

use crate::routes::paths::{
    __path_change_auth, __path_change_device, __path_change_volume, __path_create_volume,
    __path_delete_volume, __path_healthz, __path_list_devices, __path_list_volumes, __path_readyz,
    __path_restrict_volume, __path_show_metrics, __path_show_openapi, __path_show_scrub,
    __path_show_server, __path_show_stats, __path_show_volume, __path_start_scrub,
    __path_stop_scrub,
};

#[derive(OpenApi)]
#[openapi(
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
        list_devices,
        change_device,
        show_scrub,
        start_scrub,
        stop_scrub,
        show_stats,
        show_server,
        show_openapi,
        show_metrics,
        healthz,
        readyz,
    )
)]
struct Api;

/// The OpenAPI document, as served at `/v1/openapi.json`.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    Api::openapi()
}
