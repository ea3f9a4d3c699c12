//! The documentation page of the API, made from its OpenAPI document.

use std::collections::BTreeMap;

use askama::Template;
use serde_json::Value;

use super::markdown;

/// Writes the page.
pub(super) fn page(document: &Value) -> String {
    let mut groups: Vec<Group> = Vec::new();
    for (path, item) in object(&document["paths"]) {
        for (method, operation) in object(item) {
            let name = text(&operation["tags"][0]);
            let operation = Operation::of(path, method, operation);
            match groups.iter_mut().find(|group| group.name == name) {
                Some(group) => group.operations.push(operation),
                None => groups.push(Group { name, operations: vec![operation] }),
            }
        }
    }
    groups.sort_by(|one, other| one.name.cmp(&other.name));
    let schemas = object(&document["components"]["schemas"]).map(|(name, schema)| Schema::of(name, schema));
    let page = Page {
        title: text(&document["info"]["title"]),
        version: text(&document["info"]["version"]),
        description: markdown(&text(&document["info"]["description"])),
        groups,
        schemas: schemas.collect(),
    };
    page.render().unwrap_or_else(|error| error.to_string())
}

#[derive(Template)]
#[template(path = "docs.html")]
struct Page {
    title: String,
    version: String,
    description: String,
    groups: Vec<Group>,
    schemas: Vec<Schema>,
}

struct Group {
    name: String,
    operations: Vec<Operation>,
}

struct Operation {
    id: String,
    method: String,
    path: String,
    summary: String,
    description: String,
    parameters: Vec<Parameter>,
    body: Vec<Piece>,
    answers: Vec<Answer>,
}

struct Parameter {
    name: String,
    place: String,
    required: bool,
    kind: Vec<Piece>,
    description: String,
}

struct Answer {
    status: String,
    description: String,
    contents: Vec<Content>,
}

struct Content {
    media_type: String,
    kind: Vec<Piece>,
}

struct Schema {
    name: String,
    description: String,
    fields: Vec<Field>,
}

struct Field {
    name: String,
    required: bool,
    kind: Vec<Piece>,
    description: String,
}

/// A part of the name of a type; a schema's name is a link.
struct Piece {
    text: String,
    is_schema: bool,
}

impl Operation {
    fn of(path: &str, method: &str, operation: &Value) -> Self {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        let answers: BTreeMap<_, _> = object(&operation["responses"]).collect();
        Self {
            id: text(&operation["operationId"]),
            method: method.to_owned(),
            path: path.to_owned(),
            summary: text(&operation["summary"]),
            description: markdown(&text(&operation["description"])),
            parameters: parameters.map(Parameter::of).collect(),
            body: if body.is_null() { Vec::new() } else { kind(body) },
            answers: answers.into_iter().map(|(status, answer)| Answer::of(status, answer)).collect(),
        }
    }
}

impl Parameter {
    fn of(parameter: &Value) -> Self {
        Self {
            name: text(&parameter["name"]),
            place: text(&parameter["in"]),
            required: parameter["required"] == true,
            kind: kind(&parameter["schema"]),
            description: markdown(&text(&parameter["description"])),
        }
    }
}

impl Answer {
    fn of(status: &str, answer: &Value) -> Self {
        let content = |(media_type, content): (&String, &Value)| {
            let schema = &content["schema"];
            let kind = if schema.is_null() { Vec::new() } else { kind(schema) };
            Content { media_type: media_type.clone(), kind }
        };
        Self {
            status: status.to_owned(),
            description: markdown(&text(&answer["description"])),
            contents: object(&answer["content"]).map(content).collect(),
        }
    }
}

impl Schema {
    fn of(name: &str, schema: &Value) -> Self {
        let mut fields = Vec::new();
        add_fields(schema, &mut fields);
        Self { name: name.to_owned(), description: markdown(&text(&schema["description"])), fields }
    }
}

/// The fields of an object, and of what it is composed of. What is taken in whole is one line.
fn add_fields(schema: &Value, fields: &mut Vec<Field>) {
    for part in schema["allOf"].as_array().into_iter().flatten() {
        match part["$ref"].is_string() {
            true => fields.push(Field {
                name: "…".to_owned(),
                required: false,
                kind: kind(part),
                description: markdown("and everything that this one has"),
            }),
            false => add_fields(part, fields),
        }
    }
    let required: Vec<&Value> = schema["required"].as_array().into_iter().flatten().collect();
    for (name, field) in object(&schema["properties"]) {
        fields.push(Field {
            name: name.clone(),
            required: required.iter().any(|needed| *needed == name),
            kind: kind(field),
            description: markdown(&text(&field["description"])),
        });
    }
}

/// What sort of value a schema describes.
fn kind(schema: &Value) -> Vec<Piece> {
    let plain = |text: String| vec![Piece { text, is_schema: false }];
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or_default().to_owned();
        return vec![Piece { text: name, is_schema: true }];
    }
    if let Some(values) = schema["enum"].as_array() {
        return plain(values.iter().map(text).collect::<Vec<_>>().join(" | "));
    }
    if let Some(choices) = ["oneOf", "anyOf", "allOf"].iter().find_map(|way| schema[*way].as_array()) {
        let mut pieces = Vec::new();
        for choice in choices {
            if !pieces.is_empty() {
                pieces.extend(plain(" | ".to_owned()));
            }
            pieces.extend(kind(choice));
        }
        return pieces;
    }
    let types: Vec<String> = match &schema["type"] {
        Value::Array(types) => types.iter().map(text).collect(),
        Value::String(one) => vec![one.clone()],
        _ => return plain("any JSON".to_owned()),
    };
    if types.iter().any(|one| one == "array") {
        let mut pieces = plain("list of ".to_owned());
        pieces.extend(kind(&schema["items"]));
        return pieces;
    }
    let format = schema["format"].as_str().map(|format| format!(" ({format})")).unwrap_or_default();
    let bounds = match (&schema["minimum"], &schema["maximum"]) {
        (Value::Null, Value::Null) => String::new(),
        (low, Value::Null) => format!(" ≥ {low}"),
        (Value::Null, high) => format!(" ≤ {high}"),
        (low, high) => format!(" {low} to {high}"),
    };
    plain(format!("{}{format}{bounds}", types.join(" | ")))
}

fn object(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(String::new, str::to_owned)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_shows_every_operation_and_schema_and_loads_nothing() {
        let document = crate::http::document_of_all();
        let document = serde_json::to_value(&document).unwrap();
        let page = super::page(&document);
        for (path, item) in document["paths"].as_object().unwrap() {
            assert!(page.contains(path), "{path}");
            for operation in item.as_object().unwrap().values() {
                let id = operation["operationId"].as_str().unwrap();
                assert!(page.contains(&format!("<article id=\"{id}\">")), "{id}");
            }
        }
        for link in page.split("href=\"#").skip(1) {
            let target = link.split('"').next().unwrap();
            assert!(page.contains(&format!("id=\"{target}\"")), "{target} leads nowhere");
        }
        for loads in ["<script", "src=", "@import", "https://"] {
            assert!(!page.contains(loads), "the page has {loads}");
        }
    }
}
