//! What users of the program see: commands, settings, the log, pages and documentation.
#![cfg(feature = "cli")]

#[path = "../common/mod.rs"]
mod common;

#[cfg(target_os = "linux")]
mod a_service_manager_knows_the_state;
mod browsers_get_pages;
#[cfg(target_os = "linux")]
mod states_of_other_versions_are_read;
mod the_command_line_is_friendly_to_shells;
mod the_configuration_file_holds_settings;
#[cfg(feature = "client")]
mod the_documentation_is_true;
mod the_log_has_fields;
