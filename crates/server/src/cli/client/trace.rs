//! `towpath trace`: a flow as a tree.

use std::collections::HashMap;

use clap::Args;
use serde_json::Value;

use super::shown::cell;
use super::{Client, Connection};
use crate::cli::{Failure, output};

/// How many flows of an aggregate are shown.
const FLOWS: usize = 10;

/// Show the flow that an id belongs to.
#[derive(Args)]
pub(crate) struct Trace {
    #[command(flatten)]
    connection: Connection,
    /// A command, event, correlation or aggregate id (or KIND/ID)
    id: String,
}

impl Trace {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let client = Client::new(&self.connection)?;
        let traced = client.get(&["api", "trace"], &[("id", self.id.clone())]).await?;
        let flows = traced.value["correlationIds"].as_array().cloned().unwrap_or_default();
        if !client.json {
            output::note(&format!("{} is the id of a {}", self.id, cell(&traced.value["foundAs"])));
        }
        let mut texts = Vec::new();
        for flow in flows.iter().take(FLOWS).filter_map(Value::as_str) {
            let answer = client.get(&["api", "flows", flow], &[]).await?;
            if !client.json {
                for line in drawn(&answer.value, &self.id) {
                    output::line(&line);
                }
            }
            texts.push(answer.text);
        }
        if client.json {
            output::line(&format!("[{}]", texts.join(",")));
        } else if flows.len() > FLOWS {
            output::note(&format!("and {} more flows; `--json` has all ids", flows.len() - FLOWS));
        }
        Ok(())
    }
}

/// The lines of a flow.
fn drawn(flow: &Value, looked_for: &str) -> Vec<String> {
    let by_id = |things: &str, id: &str| -> HashMap<String, Value> {
        let things = flow[things].as_array().into_iter().flatten();
        things.map(|thing| (cell(&thing[id]), thing.clone())).collect()
    };
    let (commands, events) = (by_id("commands", "commandId"), by_id("events", "eventId"));
    let whole = match (flow["whole"].as_bool(), flow["truncated"].as_bool()) {
        (_, Some(true)) => "only its beginning: it is too large to be shown",
        (Some(true), _) => "whole",
        _ => "NOT WHOLE",
    };
    let mut lines = vec![format!("{} ({whole})", cell(&flow["correlationId"]))];
    for node in flow["tree"].as_array().into_iter().flatten() {
        let depth = usize::try_from(node["depth"].as_u64().unwrap_or(0)).unwrap_or(0);
        let id = cell(&node["id"]);
        let place = match node["kind"].as_str() {
            Some("command") => commands.get(&id).map(command),
            _ => events.get(&id).map(event),
        };
        let here = if id == looked_for { " <--" } else { "" };
        let mark = if node["kind"] == "command" { '>' } else { '*' };
        let place = place.unwrap_or_default();
        lines.push(format!("{}{mark} {} {id}  {place}{here}", "  ".repeat(depth + 1), cell(&node["name"])));
    }
    for link in flow["broken"].as_array().into_iter().flatten() {
        lines.push(format!(
            "  ! {} names the cause {}, which is not in the flow",
            cell(&link["id"]),
            cell(&link["missingCausationId"])
        ));
    }
    for orphan in flow["orphans"].as_array().into_iter().flatten() {
        lines.push(format!("  ! {} names no cause", cell(orphan)));
    }
    lines
}

fn command(command: &Value) -> String {
    let reason = command["statusReason"].as_str().map(|reason| format!(" ({reason})")).unwrap_or_default();
    format!(
        "{}/{} {}{reason}",
        cell(&command["aggregate"]["kind"]),
        cell(&command["aggregate"]["id"]),
        cell(&command["status"])
    )
}

fn event(event: &Value) -> String {
    let (kind, id) = (cell(&event["aggregateKind"]), cell(&event["aggregateId"]));
    format!("{kind}/{id} v{} at {}", cell(&event["aggregateVersion"]), cell(&event["position"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_a_tree_with_what_was_looked_for_marked() {
        let flow = serde_json::json!({
            "correlationId": "flow-1", "whole": false,
            "tree": [
                {"kind": "command", "id": "c", "name": "order.place", "depth": 0, "children": [1]},
                {"kind": "event", "id": "e", "name": "order.placed", "depth": 1, "children": []},
            ],
            "commands": [{"commandId": "c", "aggregate": {"kind": "order", "id": "7"}, "status": "COMPLETED", "statusReason": null}],
            "events": [{"eventId": "e", "aggregateKind": "order", "aggregateId": "7", "aggregateVersion": 1, "position": 3}],
            "broken": [], "orphans": ["x"],
        });
        assert_eq!(
            drawn(&flow, "e"),
            [
                "flow-1 (NOT WHOLE)",
                "  > order.place c  order/7 COMPLETED",
                "    * order.placed e  order/7 v1 at 3 <--",
                "  ! x names no cause",
            ]
        );
        let cut = serde_json::json!({"correlationId": "flow-2", "whole": null, "truncated": true});
        assert_eq!(drawn(&cut, "e"), ["flow-2 (only its beginning: it is too large to be shown)"]);
    }
}
