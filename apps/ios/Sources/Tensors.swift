// Raw little-endian tensor files to and from Core ML's arrays and images.

import CoreML
import CoreVideo
import Foundation

let elementBytes = ["float16": 2, "float32": 4, "float64": 8, "int8": 1, "int32": 4, "uint8": 1]

func byteCount(_ tensor: TensorFile) throws -> Int {
    guard let size = elementBytes[tensor.dtype] else { throw Failure(.input, "\(tensor.name) is \(tensor.dtype), which Core ML does not take") }
    var total = size
    for length in tensor.shape {
        let (product, overflow) = total.multipliedReportingOverflow(by: length)
        guard !overflow, product <= 1 << 33 else { throw Failure(.input, "\(tensor.name) \(tensor.shape) is too large") }
        total = product
    }
    return total
}

func readInput(_ tensor: TensorFile, _ job: URL) throws -> Data {
    let path = try inside(job, tensor.file, .job)
    guard let data = try? Data(contentsOf: path) else { throw Failure(.input, "there is no file \(tensor.file)") }
    let wanted = try byteCount(tensor)
    guard data.count == wanted else { throw Failure(.input, "\(tensor.file) has \(data.count) bytes, and \(tensor.name) takes \(wanted)") }
    return data
}

/// The stored bytes as a value of the model's feature.
func feature(_ tensor: TensorFile, _ data: Data, _ description: MLFeatureDescription) throws -> MLFeatureValue {
    switch description.type {
    case .multiArray: return MLFeatureValue(multiArray: try array(tensor, data, description))
    case .image: return MLFeatureValue(pixelBuffer: try image(tensor, data, description))
    default: throw Failure(.prepare, "input \(description.name) is neither an array nor an image")
    }
}

private func kind(_ dtype: String) -> MLMultiArrayDataType? {
    switch dtype {
    case "float64": return .double
    case "float32": return .float32
    case "int32": return .int32
    case "float16": return .float16
    default: return nil
    }
}

private func array(_ tensor: TensorFile, _ data: Data, _ description: MLFeatureDescription) throws -> MLMultiArray {
    guard let stated = description.multiArrayConstraint, let type = kind(tensor.dtype), stated.dataType == type else {
        throw Failure(.input, "input \(tensor.name) is \(tensor.dtype)\(tensor.shape) in the job, but the model has another type")
    }
    let flexible = stated.shapeConstraint.type != .unspecified
    guard flexible || stated.shape.map(\.intValue) == tensor.shape else {
        throw Failure(.input, "input \(tensor.name) is \(tensor.shape) in the job, but the model has \(stated.shape)")
    }
    let made = try MLMultiArray(shape: tensor.shape.map { NSNumber(value: $0) }, dataType: type)
    let size = elementBytes[tensor.dtype]!
    made.withUnsafeMutableBytes { target, strides in
        data.withUnsafeBytes { source in
            forEachElement(tensor.shape, strides) { index, offset in
                let from = source.baseAddress!.advanced(by: index * size)
                target.baseAddress!.advanced(by: offset * size).copyMemory(from: from, byteCount: size)
            }
        }
    }
    return made
}

/// Pixels as uint8 [1, height, width, channels]: red, green and blue, or gray.
private func image(_ tensor: TensorFile, _ data: Data, _ description: MLFeatureDescription) throws -> CVPixelBuffer {
    guard let stated = description.imageConstraint, tensor.dtype == "uint8" else {
        throw Failure(.input, "input \(tensor.name) is an image, and takes uint8 pixels")
    }
    let channels = stated.pixelFormatType == kCVPixelFormatType_OneComponent8 ? 1 : 3
    let fixed = [stated.pixelsHigh, stated.pixelsWide]
    guard tensor.shape.count == 4, tensor.shape[0] == 1, tensor.shape[3] == channels,
        stated.sizeConstraint.type != .unspecified || Array(tensor.shape[1...2]) == fixed
    else {
        throw Failure(.input, "input \(tensor.name) is \(tensor.shape) in the job, but the model takes [1, \(fixed[0]), \(fixed[1]), \(channels)]")
    }
    guard let made = pixelBuffer(data, width: tensor.shape[2], height: tensor.shape[1], channels: channels) else {
        throw Failure(.input, "input \(tensor.name): no memory for its pixels")
    }
    return made
}

/// An output as raw bytes in C order, with its type and shape.
func rawBytes(_ name: String, _ value: MLFeatureValue) throws -> (Data, String, [Int]) {
    guard let array = value.multiArrayValue else { throw Failure(.output, "output \(name) is no array") }
    let names: [MLMultiArrayDataType: String] = [.double: "float64", .float32: "float32", .int32: "int32", .float16: "float16"]
    guard let dtype = names[array.dataType], let size = elementBytes[dtype] else { throw Failure(.output, "output \(name) has a type without a name") }
    let shape = array.shape.map(\.intValue)
    var data = Data(count: shape.reduce(size, *))
    let strides = array.strides.map(\.intValue)
    data.withUnsafeMutableBytes { target in
        array.withUnsafeBytes { source in
            forEachElement(shape, strides) { index, offset in
                let from = source.baseAddress!.advanced(by: offset * size)
                target.baseAddress!.advanced(by: index * size).copyMemory(from: from, byteCount: size)
            }
        }
    }
    return (data, dtype, shape)
}

/// Calls `body(index in C order, offset by strides)` for each element: Core ML pads rows as it likes.
private func forEachElement(_ shape: [Int], _ strides: [Int], _ body: (Int, Int) -> Void) {
    let total = shape.reduce(1, *)
    var position = [Int](repeating: 0, count: shape.count)
    var offset = 0
    for index in 0..<total {
        body(index, offset)
        var axis = shape.count - 1
        while axis >= 0 {
            position[axis] += 1
            offset += strides[axis]
            if position[axis] < shape[axis] { break }
            offset -= strides[axis] * shape[axis]
            position[axis] = 0
            axis -= 1
        }
    }
}
