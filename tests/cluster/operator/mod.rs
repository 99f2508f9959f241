//! What an operator uses and sees: command lines, health ports, findings, privileges.

mod command_line;
mod ctl;
mod doctor;
mod events;
mod health;
mod leases;
mod monitoring;
mod nodes;
mod peer_trace;
mod pods;
mod privileges;
mod sysdump;
mod trace;
