//! The derives of Towpath. Use them through `towpath`, which has the traits of the same names.
//!
//! A stored name is written once, in `#[serde(rename = "...")]` on its variant. From there come the list of names, the name
//! of a value, and a constant for each variant (`OrderEvent::PLACED`), so that machines, pairs and consumers name it by one
//! that the compiler knows.

mod derive;
mod names;
mod row;
mod variants;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Makes an enum the events of an aggregate.
///
/// Each variant needs `#[serde(rename = "order.placed")]`. On the enum, `#[event(...)]` takes:
///
/// - `version = 2`: the schema version that is written into new events; 1 otherwise.
/// - `upcast = path`: a function that brings payloads of older versions into the form of this one.
/// - `schemas`: a function `schemas()` that answers each stored name with the JSON Schema of its payload; the crate needs `schemars`.
/// - `crate = "path"`: where Towpath is; `::towpath` otherwise.
#[proc_macro_derive(Event, attributes(event, serde))]
pub fn event(input: TokenStream) -> TokenStream {
    answer(derive::event(&parse_macro_input!(input as DeriveInput)))
}

/// Makes an enum the commands of an aggregate.
///
/// Each variant needs `#[serde(rename = "order.place")]`. On a variant, `#[command(...)]` takes:
///
/// - `gives = OrderEvent::PLACED`: the event that is the result of this command whenever it completes.
/// - `internal`: only the application's own parts send it.
///
/// On the enum, `#[command(crate = "path")]` says where Towpath is; `::towpath` otherwise.
#[proc_macro_derive(Command, attributes(command, serde))]
pub fn command(input: TokenStream) -> TokenStream {
    answer(derive::command(&parse_macro_input!(input as DeriveInput)))
}

/// Makes a struct a row of a table of the application's own. Each field is a column, in this order.
///
/// On the struct, `#[row(...)]` takes:
///
/// - `table = "orders"`: the table.
/// - `index(orders_buyer(buyer_id, order_id))`, `unique(orders_number(number))`: indexes by their names, over columns.
/// - `append_only`: its rows are not changed.
/// - `crate = "path"`: where Towpath is; `::towpath` otherwise.
///
/// On a field:
///
/// - `key`: it belongs to what tells rows apart. Several make a tuple, in the order of the fields.
/// - `column = "price_cents"`: the column is called otherwise.
/// - `name = 64`: a short text that is compared byte for byte, of at most so many characters. A key of text needs it.
/// - `json`: a text that is JSON, of any length. `count`: a number that begins with 0.
/// - `state`: the state that a machine guards.
#[proc_macro_derive(Row, attributes(row))]
pub fn row(input: TokenStream) -> TokenStream {
    answer(row::row(&parse_macro_input!(input as DeriveInput)))
}

/// Makes an enum, which is `Copy` and has no content, a text in a column: a status, a colour.
///
/// Each variant needs `#[serde(rename = "on_sale")]`. It has `ALL`, `as_str` and `named` then, is shown by its name, and can
/// be a field of a row and a value of a statement. `#[stored(crate = "path")]` says where Towpath is; `::towpath` otherwise.
#[proc_macro_derive(StoredName, attributes(stored, serde))]
pub fn stored_name(input: TokenStream) -> TokenStream {
    answer(names::stored_name(&parse_macro_input!(input as DeriveInput)))
}

fn answer(made: syn::Result<proc_macro2::TokenStream>) -> TokenStream {
    made.unwrap_or_else(syn::Error::into_compile_error).into()
}
